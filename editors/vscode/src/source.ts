// Where completions come from: a server over HTTP, or a language server in a process of its own.
import * as vscode from "vscode";

export interface Step {
  left: string;
  allowed: number;
  mass: number;
  candidates: { text: string; share: number }[];
}

/** How a text was read, as charwise reports it. */
export interface Reading {
  kept: string[];
  removed: string[];
  forced: string;
  steps: Step[];
}

/** A failure that a user can repair: one line, and a button that helps. */
export class Failure extends Error {
  constructor(
    message: string,
    readonly button: string,
    readonly help: () => unknown,
  ) {
    super(message);
  }
}

export interface Source {
  /** The model's name, for the status item. */
  readonly name: string;
  /** The texts to insert at a position, best first. */
  complete(
    document: vscode.TextDocument,
    position: vscode.Position,
    context: vscode.InlineCompletionContext,
    token: vscode.CancellationToken,
  ): Promise<vscode.InlineCompletionItem[]>;
  explain(document: vscode.TextDocument, position: vscode.Position): Promise<Reading>;
  dispose(): void;
}

export const openSettings = (name: string) =>
  vscode.commands.executeCommand("workbench.action.openSettings", `charwise.${name}`);
