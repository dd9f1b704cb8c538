// Run each function that the test posts, with VS Code's interface, and report its result.
const vscode = require("vscode");

exports.activate = async ({ extensionUri }) => {
  const server = `${extensionUri.scheme}://${extensionUri.authority}`;
  for (;;) {
    const { id, code, argument } = await (await fetch(`${server}/order`)).json();
    if (!id) continue;
    let answer;
    try {
      const run = Object.getPrototypeOf(async () => {}).constructor("vscode", "argument", code);
      answer = { result: (await run(vscode, argument)) ?? null };
    } catch (error) {
      answer = { error: String(error?.stack ?? error) };
    }
    await fetch(`${server}/answer`, { method: "POST", body: JSON.stringify({ id, ...answer }) });
  }
};
