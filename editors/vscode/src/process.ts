// Completions from `charwise lsp`, which this extension starts.
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import * as vscode from "vscode";
import { LanguageClient, RevealOutputChannelOn } from "vscode-languageclient/node";
import { settings } from "./settings";
import { Failure, openSettings, type Reading, type Source } from "./source";
import { install, onPath, programIn, SIZE } from "./install";

/** Longer documents, in characters, are not sent to the language server: each key would be slow. */
const LONGEST = 2_000_000;

interface Item {
  insertText: string;
  range?: { start: vscode.Position; end: vscode.Position };
}

export class Process implements Source {
  private constructor(
    private readonly client: LanguageClient,
    readonly name: string,
  ) {}

  /** Start the program; `own` is the folder of the environment that the extension installs. */
  static async start(output: vscode.LogOutputChannel, own: string): Promise<Process> {
    const { model } = settings();
    const command = program(own, output);
    await supported(command);
    const client = new LanguageClient(
      "charwise",
      "charwise",
      { command, args: ["lsp", ...(model ? ["--model", model] : [])] },
      {
        documentSelector: [{ pattern: "**" }, { scheme: "untitled" }],
        outputChannel: output,
        revealOutputChannelOn: RevealOutputChannelOn.Never,
        // The extension asks by itself, for one place that debounces and reports failures.
        middleware: {
          provideInlineCompletionItems: () => [],
          didOpen: async (document, send) => void (short(document) && (await send(document))),
          didChange: async (change, send) => void (short(change.document) && (await send(change))),
        },
      },
    );
    try {
      await client.start();
    } catch (error) {
      throw new Failure(`charwise lsp did not start: ${line(error)}`, "Show the log", () =>
        output.show(),
      );
    }
    return new Process(client, model || "embedded model");
  }

  async complete(
    document: vscode.TextDocument,
    position: vscode.Position,
    context: vscode.InlineCompletionContext,
    token: vscode.CancellationToken,
  ): Promise<vscode.InlineCompletionItem[]> {
    const chosen = context.selectedCompletionInfo;
    const answer = await this.client.sendRequest<{ items: Item[] } | null>(
      "textDocument/inlineCompletion",
      {
        ...place(document, position),
        context: {
          triggerKind: context.triggerKind,
          ...(chosen && { selectedCompletionInfo: { range: chosen.range, text: chosen.text } }),
        },
      },
      token,
    );
    return (answer?.items ?? []).map(({ insertText, range }) => {
      const { start, end } = range ?? { start: position, end: position };
      const where = new vscode.Range(start.line, start.character, end.line, end.character);
      return new vscode.InlineCompletionItem(insertText, where);
    });
  }

  async explain(document: vscode.TextDocument, position: vscode.Position): Promise<Reading> {
    return this.client.sendRequest<Reading>("charwise/steps", place(document, position));
  }

  dispose(): void {
    void this.client.dispose().catch(() => undefined);
  }
}

const place = (document: vscode.TextDocument, position: vscode.Position) => ({
  textDocument: { uri: document.uri.toString() },
  position: { line: position.line, character: position.character },
});

/** Whether a document is short enough; a line count alone would miss one long line. */
function short(document: vscode.TextDocument): boolean {
  const last = document.lineAt(document.lineCount - 1);
  return document.offsetAt(last.range.end) <= LONGEST;
}

/** The program of the settings, of a virtual environment, or of the path. */
function program(own: string, output: vscode.LogOutputChannel): string {
  const { command } = settings();
  const folders = (vscode.workspace.workspaceFolders ?? []).filter(() => vscode.workspace.isTrusted);
  const environments = folders.flatMap(({ uri }) =>
    [".venv", "venv"].map((name) => programIn(join(uri.fsPath, name), "charwise")),
  );
  const places = command ? [command] : [...environments, programIn(own, "charwise"), ...onPath("charwise")];
  const program = places.find((one) => existsSync(one));
  if (program) return program;
  if (command)
    throw new Failure(`There is no program ${command}.`, "Set the program's path", () => openSettings("command"));
  const uv = onPath("uv").find((one) => existsSync(one));
  if (uv)
    throw new Failure("charwise is not installed.", `Install it with uv (about ${SIZE})`, () =>
      install(uv, own, output),
    );
  throw new Failure(
    "charwise is not installed. Install uv, or run: pip install 'charwise[lsp]'",
    "Set the program's path",
    () => openSettings("command"),
  );
}

/** Refuse a program that cannot speak to an editor, with its own last line. */
function supported(command: string): Promise<void> {
  return new Promise((resolve, reject) =>
    execFile(command, ["lsp", "--help"], { timeout: 60_000 }, (error, _, stderr) => {
      if (!error) return resolve();
      const why = stderr.trim().split("\n").pop() || line(error);
      reject(new Failure(`${command} does not run: ${why}`, "Set the program's path", () => openSettings("command")));
    }),
  );
}

const line = (error: unknown) => String((error as Error)?.message ?? error).split("\n")[0];
