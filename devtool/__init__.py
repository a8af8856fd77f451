"""The command line of the checkout: scaffold, build, test and inspect ops. No module imports torch at its top level."""
