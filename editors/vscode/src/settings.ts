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
  const given = vscode.workspace.getConfiguration("charwise");
  const text = (name: string) => String(given.get(name) ?? "").trim();
  return {
    enabled: given.get("enabled", true),
    url: text("url").replace(/\/+$/, ""),
    apiKey: text("apiKey"),
    command: text("command"),
    model: text("model"),
    languages: given.get("languages", ["*"]),
    debounce: Math.max(0, Number(given.get("debounce", 60)) || 0),
  };
}

export function covers(languages: string[], document: vscode.TextDocument): boolean {
  return languages.includes("*") || languages.includes(document.languageId);
}
