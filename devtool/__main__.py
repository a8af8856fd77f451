from devtool.cli import main

main()
