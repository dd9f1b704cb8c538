// The build for the desktop: a server at an address or where it runs by default, or `charwise lsp`.
import { join } from "node:path";
import * as vscode from "vscode";
import * as extension from "./extension";
import { Server } from "./http";
import { Process } from "./process";
import { settings } from "./settings";

export function activate(context: vscode.ExtensionContext): void {
  const output = vscode.window.createOutputChannel("charwise", { log: true });
  context.subscriptions.push(output);
  const own = join(context.globalStorageUri.fsPath, "environment");
  extension.activate(context, async () => {
    const { url, command, model } = settings();
    if (url) return Server.at(url);
    const running = command || model ? undefined : await Server.running();
    return running ?? Process.start(output, own);
  });
}
