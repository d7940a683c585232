from bayplan.cli.main import main

main()
