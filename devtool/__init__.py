"""The command line of the checkout: scaffold, build, test and look at ops. It never imports torch at its top level."""
