// The settings of a user, read each time that they are needed.
import * as vscode from "vscode";

export interface Settings {
  enabled: boolean;
  url: string;
  apiKey: string;
  command: string;
  model: string;
  languages: string[];
  debounce: number;
}

export function settings(): Settings {
  const configuration = vscode.workspace.getConfiguration("charwise");
  const text = (name: string) => String(configuration.get(name) ?? "").trim();
  return {
    enabled: configuration.get("enabled", true),
    url: text("url").replace(/\/+$/, ""),
    apiKey: text("apiKey"),
    command: text("command"),
    model: text("model"),
    languages: configuration.get("languages", ["*"]),
    debounce: Math.max(0, Number(configuration.get("debounce", 60)) || 0),
  };
}

export function covers(languages: string[], document: vscode.TextDocument): boolean {
  return languages.includes("*") || languages.includes(document.languageId);
}
