// The build for the desktop: a server at an address, or `charwise lsp` in a process of its own.
import * as vscode from "vscode";
import * as extension from "./extension";
import { Server } from "./http";
import { Process } from "./process";
import { settings } from "./settings";

export function activate(context: vscode.ExtensionContext): void {
  const output = vscode.window.createOutputChannel("charwise", { log: true });
  context.subscriptions.push(output);
  extension.activate(context, () => {
    const { url } = settings();
    return url ? Server.at(url) : Process.start(output);
  });
}
