;; lsp-mode: ghost text by charwise. docs/editors.md explains it.
(require 'lsp-mode)
(require 'lsp-inline-completion)
(setq lsp-inline-completion-idle-delay 0.2)
(lsp-register-client
 (make-lsp-client
  :new-connection (lsp-stdio-connection '("charwise" "lsp"))
  :activation-fn (lsp-activate-on "python")
  :initialization-options '(:maxBytes 80 :seconds 0.5)
  :add-on? t
  :server-id 'charwise))
(add-hook 'python-mode-hook #'lsp)
(add-hook 'lsp-mode-hook #'lsp-inline-completion-mode)
(define-key lsp-inline-completion-active-map (kbd "<tab>") #'lsp-inline-completion-accept)
