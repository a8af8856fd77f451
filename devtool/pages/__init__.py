"""The documentation's pages, of any repository: Sphinx with the configuration and the extension of this folder."""
