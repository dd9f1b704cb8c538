"""The JupyterLab extension of charwise: it has JavaScript only, which JupyterLab finds by itself."""
