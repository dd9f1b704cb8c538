// Bundle the extension twice: for the desktop (Node) and for the browser.
import { build } from "esbuild";

const common = { bundle: true, external: ["vscode"], format: "cjs", minify: true, target: "es2022" };

await Promise.all([
  build({ ...common, entryPoints: ["src/desktop.ts"], outfile: "dist/desktop.js", platform: "node" }),
  build({ ...common, entryPoints: ["src/web.ts"], outfile: "dist/web.js", platform: "browser" }),
]);
