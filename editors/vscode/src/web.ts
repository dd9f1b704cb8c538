// The build for VS Code in a browser, which starts no process.
import type * as vscode from "vscode";
import * as extension from "./extension";
import { Server } from "./http";
import { settings } from "./settings";
import { Failure, openSettings, type Source } from "./source";

async function open(): Promise<Source> {
  const { url } = settings();
  if (url) return Server.at(url);
  throw new Failure(
    "In a browser, charwise needs the address of a server.",
    "Enter the address",
    () => openSettings("url"),
  );
}

export const activate = (context: vscode.ExtensionContext) => extension.activate(context, open);
