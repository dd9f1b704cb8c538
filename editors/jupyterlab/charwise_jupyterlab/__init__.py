"""The JupyterLab extension of charwise. It has JavaScript only, which JupyterLab finds."""
