// Completions from a running `charwise serve`, in llama.cpp's dialect.
import * as vscode from "vscode";
import { settings } from "./settings";
import { Failure, openSettings, type Reading, type Source } from "./source";

/** Where `charwise serve` listens unless told otherwise. */
const DEFAULT = "http://127.0.0.1:8000";

/** Characters sent before and after the cursor: more than a model's window holds. */
const BEFORE = 32_000;
const AFTER = 8_000;

/** Characters that the server explains. */
const EXPLAINED = 8_000;

/** Milliseconds after which a server counts as unreachable. */
const PATIENCE = 15_000;

export class Server implements Source {
  private constructor(
    private readonly url: string,
    readonly name: string,
  ) {}

  /** Ask the server at an address for its model. */
  static async at(url: string): Promise<Server> {
    const { model_alias } = await request<{ model_alias?: string }>(`${url}/props`);
    return new Server(url, model_alias || "model");
  }

  /** The `charwise serve` that runs at its default address; undefined where none answers. */
  static async running(): Promise<Server | undefined> {
    try {
      const answer = await fetch(`${DEFAULT}/props`, { signal: AbortSignal.timeout(1000) });
      const { build_info } = (await answer.json()) as { build_info?: string };
      return build_info === "charwise" ? await Server.at(DEFAULT) : undefined;
    } catch {
      return undefined;
    }
  }

  async complete(
    document: vscode.TextDocument,
    position: vscode.Position,
    context: vscode.InlineCompletionContext,
    token: vscode.CancellationToken,
  ): Promise<vscode.InlineCompletionItem[]> {
    const chosen = context.selectedCompletionInfo;
    const range = chosen?.range ?? new vscode.Range(position, position);
    const beginning = chosen?.text ?? "";
    const body = {
      input_prefix: before(document, range.start, BEFORE) + beginning,
      input_suffix: after(document, range.end, AFTER),
      prompt: "",
      until: "line",
      temperature: 0,
      t_max_predict_ms: 1000,
    };
    const { content } = await request<{ content: string }>(`${this.url}/infill`, body, token);
    return content ? [new vscode.InlineCompletionItem(beginning + content, range)] : [];
  }

  explain(document: vscode.TextDocument, position: vscode.Position): Promise<Reading> {
    const text = before(document, position, EXPLAINED);
    return request<Reading>(`${this.url}/v1/steps`, { prompt: text });
  }

  dispose(): void {}
}

/** At most `most` characters before a position, read by offsets: a file may have 20 MB. */
function before(document: vscode.TextDocument, position: vscode.Position, most: number): string {
  const end = document.offsetAt(position);
  const start = document.positionAt(Math.max(0, end - most));
  return document.getText(new vscode.Range(start, position));
}

function after(document: vscode.TextDocument, position: vscode.Position, most: number): string {
  const end = document.positionAt(document.offsetAt(position) + most);
  return document.getText(new vscode.Range(position, end));
}

async function request<T>(
  address: string,
  body?: object,
  token?: vscode.CancellationToken,
): Promise<T> {
  const { apiKey } = settings();
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), PATIENCE);
  const watch = token?.onCancellationRequested(() => abort.abort());
  let answer: Response;
  let text: string;
  try {
    answer = await fetch(address, {
      method: body ? "POST" : "GET",
      body: body && JSON.stringify(body),
      headers: {
        ...(body && { "Content-Type": "application/json" }),
        ...(apiKey && { Authorization: `Bearer ${apiKey}` }),
      },
      signal: abort.signal,
    });
    text = await answer.text();
  } catch {
    if (token?.isCancellationRequested) throw new vscode.CancellationError();
    const { origin } = new URL(address);
    const allow = vscode.env.uiKind === vscode.UIKind.Web ? " --allow-origin '*'" : "";
    throw new Failure(
      `No server answers at ${origin}. Start it: charwise serve${allow}`,
      "Change the address",
      () => openSettings("url"),
    );
  } finally {
    clearTimeout(timer);
    watch?.dispose();
  }
  if (answer.status === 401)
    throw new Failure("The server requires a key.", "Enter the key", () => openSettings("apiKey"));
  const parsed = json(text);
  if (!answer.ok || !parsed) {
    const why = parsed?.error?.message ?? `status ${answer.status}`;
    throw new Failure(`The server refused: ${why}`, "Change the settings", () => openSettings(""));
  }
  return parsed as T;
}

function json(text: string): any {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
