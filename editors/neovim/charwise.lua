---@brief
---
--- https://github.com/charwise/charwise
---
--- Inline completions that continue the word you are typing, from a model on your machine.
---
--- ```sh
--- uv tool install 'charwise[lsp]'
--- ```
---
--- Neovim 0.12 or newer shows them after `vim.lsp.inline_completion.enable()`. Set your model with
--- `cmd = { 'charwise', 'lsp', '--model', 'Qwen/Qwen2.5-Coder-0.5B' }`, and more languages with
--- `filetypes`.

---@type vim.lsp.Config
return {
  cmd = { 'charwise', 'lsp' },
  filetypes = { 'python' },
  root_markers = { 'pyproject.toml', '.git' },
  init_options = { maxBytes = 80, seconds = 0.5 },
}
