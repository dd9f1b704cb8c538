// An environment of the extension's own, which `uv` makes.
import { execFile } from "node:child_process";
import { rm } from "node:fs/promises";
import { delimiter, join } from "node:path";
import { promisify } from "node:util";
import * as vscode from "vscode";

const WINDOWS = process.platform === "win32";

/** What the environment takes on disk, with a CPU build of PyTorch. */
export const SIZE = "0.9 GB";

/** Where a virtual environment has a program. */
export const programIn = (environment: string, name: string): string =>
  join(environment, WINDOWS ? "Scripts" : "bin", WINDOWS ? `${name}.exe` : name);

/** Where the folders of the path may have a program. */
export const onPath = (name: string): string[] =>
  (process.env.PATH ?? "").split(delimiter).map((folder) => join(folder, WINDOWS ? `${name}.exe` : name));

/** Install charwise into a folder, show that it goes on, and restart; nothing half made stays. */
export async function install(
  uv: string,
  folder: string,
  output: vscode.LogOutputChannel,
): Promise<void> {
  const run = async (args: string[], signal: AbortSignal) => {
    output.info(`${uv} ${args.join(" ")}`);
    // Without a GPU, uv takes the CPU build of PyTorch.
    const env = { UV_TORCH_BACKEND: "auto", ...process.env };
    const { stderr } = await promisify(execFile)(uv, args, { signal, env, maxBuffer: 2 ** 26 });
    output.info(stderr.trim());
  };
  const python = programIn(folder, "python");
  const title = "charwise: installing";
  const progress = { location: vscode.ProgressLocation.Notification, title, cancellable: true };
  try {
    await vscode.window.withProgress(progress, async (_, token) => {
      const abort = new AbortController();
      token.onCancellationRequested(() => abort.abort());
      await run(["venv", "--clear", "--python", "3.11", folder], abort.signal);
      await run(["pip", "install", "--python", python, "charwise[lsp]"], abort.signal);
    });
  } catch (error) {
    await rm(folder, { recursive: true, force: true });
    if ((error as Error).name === "AbortError") return;
    output.error(String(error));
    const pressed = await vscode.window.showErrorMessage("charwise: uv could not install it.", "Show the log");
    if (pressed) output.show();
    return;
  }
  await vscode.commands.executeCommand("charwise.restart");
}
