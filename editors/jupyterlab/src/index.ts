// Inline completions in notebooks, from a running `charwise serve`.
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import {
  type CompletionHandler,
  ICompletionProviderManager,
  type IInlineCompletionContext,
  type IInlineCompletionList,
  type IInlineCompletionProvider,
} from "@jupyterlab/completer";

/** Characters sent before and after the cursor: more than a model's window holds. */
const BEFORE = 32_000;
const AFTER = 8_000;

const DEFAULTS = { url: "http://127.0.0.1:8000", apiKey: "" };

/** What a notebook's panel has of its cells; consoles and files have none. */
interface Cell {
  model: { type: string; sharedModel: { getSource(): string } };
}
interface Panel {
  content?: { widgets?: Cell[]; activeCellIndex?: number };
}

class Provider implements IInlineCompletionProvider {
  readonly identifier = "charwise";
  readonly name = "charwise";
  private settings = DEFAULTS;

  readonly schema: IInlineCompletionProvider["schema"] = {
    default: DEFAULTS,
    properties: {
      url: {
        title: "Address",
        description: "The address of a running `charwise serve`.",
        type: "string",
      },
      apiKey: {
        title: "Key",
        description: "The key of that server, if it requires one.",
        type: "string",
      },
    },
  };

  configure(settings: Partial<typeof DEFAULTS>): void {
    this.settings = { ...DEFAULTS, ...settings };
  }

  async fetch(
    { text, offset }: CompletionHandler.IRequest,
    { widget }: IInlineCompletionContext,
  ): Promise<IInlineCompletionList> {
    // JupyterLab counts characters here, where JavaScript counts UTF-16 code units.
    const characters = Array.from(text);
    const before = above(widget as Panel) + characters.slice(0, offset).join("");
    const { url, apiKey } = this.settings;
    const address = url.trim().replace(/\/+$/, "");
    let answer: Response;
    try {
      answer = await fetch(`${address}/infill`, {
        method: "POST",
        headers: {
          "Content-Type": "application/json",
          ...(apiKey && { Authorization: `Bearer ${apiKey}` }),
        },
        body: JSON.stringify({
          input_prefix: before.slice(-BEFORE),
          input_suffix: characters.slice(offset).join("").slice(0, AFTER),
          prompt: "",
          until: "line",
          temperature: 0,
          t_max_predict_ms: 1000,
        }),
      });
    } catch {
      throw new Error(
        `No server answers at ${address}. ` +
          `Start it: charwise serve --allow-origin ${window.location.origin}`,
      );
    }
    const body = await answer.json().catch(() => undefined);
    if (!answer.ok || !body)
      throw new Error(body?.error?.message ?? `The server answered with status ${answer.status}.`);
    return { items: body.content ? [{ insertText: body.content }] : [] };
  }
}

/** The code cells above the active one, each with a newline at its end. */
function above({ content }: Panel): string {
  const cells = content?.widgets?.slice(0, content.activeCellIndex ?? 0) ?? [];
  return cells
    .filter(({ model }) => model.type === "code")
    .map(({ model }) => model.sharedModel.getSource() + "\n")
    .join("\n");
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: "@charwise/jupyterlab:plugin",
  description: "Offer inline completions from charwise.",
  autoStart: true,
  requires: [ICompletionProviderManager],
  activate: (_: JupyterFrontEnd, manager: ICompletionProviderManager) =>
    manager.registerInlineProvider(new Provider()),
};

export default plugin;
