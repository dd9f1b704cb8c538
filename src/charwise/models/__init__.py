"""Where the embedded default model lies."""

from importlib.resources import files

#: Folder of the embedded model: ordinary Hugging Face files.
EMBEDDED = str(files(__name__) / "embedded")
