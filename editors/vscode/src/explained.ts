// A page that shows how the text before the cursor was read.
import * as vscode from "vscode";
import type { Reading } from "./source";

export const SCHEME = "charwise";

/** Candidates shown at each step. */
const CANDIDATES = 4;

export class Explained implements vscode.TextDocumentContentProvider {
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  readonly onDidChange = this.changed.event;
  private text = "";

  provideTextDocumentContent(): string {
    return this.text;
  }

  async show(reading: Reading): Promise<void> {
    this.text = page(reading);
    const uri = vscode.Uri.from({ scheme: SCHEME, path: "How the text was read" });
    this.changed.fire(uri);
    const document = await vscode.workspace.openTextDocument(uri);
    await vscode.window.showTextDocument(document, {
      viewColumn: vscode.ViewColumn.Beside,
      preserveFocus: true,
      preview: true,
    });
  }
}

function page({ kept, removed, forced, steps }: Reading): string {
  const lines = [
    "How the text before the cursor was read",
    "",
    `  kept     ${tokens(kept.slice(-8))}`,
    `  removed  ${tokens(removed)}`,
    "",
    `Tokens may follow where they agree with ${quoted(forced)}.`,
    "The first candidate of each step is taken.",
  ];
  steps.forEach(({ left, allowed, mass, candidates }, at) => {
    const may = `${allowed} tokens may follow, with ${percent(mass)} of the probability`;
    lines.push("", `${at + 1}. ${left ? `${quoted(left)} is left` : "The text is written"}`, `   ${may}`);
    for (const { text, share } of candidates.slice(0, CANDIDATES))
      lines.push(`     ${percent(share).padStart(7)}  ${quoted(text)}`);
  });
  return lines.join("\n") + "\n";
}

const quoted = (text: string) => JSON.stringify(text);
const tokens = (texts: string[]) => texts.filter(Boolean).map(quoted).join(" ") || "none";
const percent = (p: number) => (p >= 0.001 || p === 0 ? `${(100 * p).toFixed(1)} %` : "< 0.1 %");
