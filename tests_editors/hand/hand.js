// Run each function that the test posts, with VS Code's interface, and report its result.
const vscode = require("vscode");

exports.activate = async ({ extensionUri }) => {
  const server = globalThis.process?.env.HAND ?? `${extensionUri.scheme}://${extensionUri.authority}`;
  for (;;) {
    const { id, code, given } = await (await fetch(`${server}/order`)).json();
    if (!id) continue;
    let told;
    try {
      const run = Object.getPrototypeOf(async () => {}).constructor("vscode", "given", code);
      told = { result: (await run(vscode, given)) ?? null };
    } catch (error) {
      told = { error: String(error?.stack ?? error) };
    }
    await fetch(`${server}/told`, { method: "POST", body: JSON.stringify({ id, ...told }) });
  }
};
