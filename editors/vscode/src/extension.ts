// What both builds share: ghost text, the status item, and the commands.
import * as vscode from "vscode";
import { Explained, SCHEME } from "./explained";
import { covers, settings } from "./settings";
import { Failure, type Source } from "./source";

/** Settings whose change needs another source. */
const RESTARTING = ["url", "apiKey", "command", "model"];

class Extension implements vscode.InlineCompletionItemProvider {
  private source: Promise<Source> | undefined;
  private readonly reports = new Set<string>();
  private readonly explained = new Explained();
  private readonly status = vscode.window.createStatusBarItem(vscode.StatusBarAlignment.Right, 50);

  constructor(
    private readonly open: () => Promise<Source>,
    context: vscode.ExtensionContext,
  ) {
    const { commands, languages, workspace } = vscode;
    this.status.command = "charwise.toggle";
    this.status.show();
    context.subscriptions.push(
      this.status,
      { dispose: () => this.close() },
      languages.registerInlineCompletionItemProvider({ pattern: "**" }, this),
      workspace.registerTextDocumentContentProvider(SCHEME, this.explained),
      workspace.onDidChangeConfiguration((change) => {
        if (RESTARTING.some((name) => change.affectsConfiguration(`charwise.${name}`))) this.restart();
        else if (change.affectsConfiguration("charwise")) void this.ready();
      }),
      commands.registerCommand("charwise.restart", () => this.restart()),
      commands.registerCommand("charwise.toggle", () =>
        workspace
          .getConfiguration("charwise")
          .update("enabled", !settings().enabled, vscode.ConfigurationTarget.Global),
      ),
      commands.registerCommand("charwise.explain", () => this.explain()),
    );
    void this.ready();
  }

  async provideInlineCompletionItems(
    document: vscode.TextDocument,
    position: vscode.Position,
    context: vscode.InlineCompletionContext,
    token: vscode.CancellationToken,
  ): Promise<vscode.InlineCompletionItem[]> {
    const { enabled, languages, debounce } = settings();
    if (!enabled || !covers(languages, document) || insideCharacter(document, position)) return [];
    if (context.triggerKind === vscode.InlineCompletionTriggerKind.Automatic)
      await new Promise((wake) => setTimeout(wake, debounce));
    if (token.isCancellationRequested) return [];
    const items = await this.using((source) => source.complete(document, position, context, token));
    return token.isCancellationRequested ? [] : (items ?? []);
  }

  private async explain(): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    if (!editor) {
      void vscode.window.showInformationMessage("charwise: open a file, and place the cursor.");
      return;
    }
    const { document, selection } = editor;
    this.reports.clear(); // a command is answered, each time
    const reading = await this.using((source) => source.explain(document, selection.active));
    if (reading) await this.explained.show(reading);
  }

  /** The source's answer, or undefined after a failure, which is reported once. */
  private async using<T>(ask: (source: Source) => Promise<T>): Promise<T | undefined> {
    const source = await this.ready();
    if (!source) return undefined;
    try {
      const answer = await ask(source);
      this.reports.clear();
      this.show(source.name);
      return answer;
    } catch (error) {
      this.report(error);
      return undefined;
    }
  }

  /** The source, opened at first use; undefined while it fails or completions are off. */
  private async ready(): Promise<Source | undefined> {
    if (!settings().enabled) {
      this.status.text = "$(circle-slash) charwise: off";
      this.status.tooltip = "Click to offer inline completions.";
      return undefined;
    }
    this.source ??= this.open();
    const opened = this.source;
    try {
      const source = await opened;
      this.show(source.name);
      return source;
    } catch (error) {
      if (this.source === opened) this.source = undefined; // the next key tries again
      this.report(error);
      return undefined;
    }
  }

  private show(name: string): void {
    this.status.text = `$(sparkle) ${name}`;
    this.status.tooltip = `charwise completes with ${name}. Click to turn it off.`;
  }

  /** Show a failure in the status item, and once as a message with a button. */
  private report(error: unknown): void {
    if (error instanceof vscode.CancellationError) return;
    const message = error instanceof Error ? (error.message.split("\n")[0] ?? "") : String(error);
    this.status.text = "$(warning) charwise";
    this.status.tooltip = message;
    if (this.reports.has(message)) return;
    this.reports.add(message);
    const [button, help] =
      error instanceof Failure ? [error.button, error.help] : ["Restart", () => this.restart()];
    void vscode.window
      .showErrorMessage(`charwise: ${message}`, button)
      .then((pressed) => pressed && help());
  }

  private restart(): void {
    this.close();
    this.reports.clear();
    void this.ready();
  }

  private close(): void {
    void this.source?.then((source) => source.dispose()).catch(() => undefined);
    this.source = undefined;
  }
}

/** Whether a position is between the two halves of a surrogate pair. */
function insideCharacter(document: vscode.TextDocument, position: vscode.Position): boolean {
  const { text } = document.lineAt(position);
  const halves = text.slice(Math.max(0, position.character - 1), position.character + 1);
  return position.character > 0 && /^[\uD800-\uDBFF][\uDC00-\uDFFF]$/.test(halves);
}

export function activate(context: vscode.ExtensionContext, open: () => Promise<Source>): void {
  new Extension(open, context);
}
