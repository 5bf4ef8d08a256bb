from nescio.cli import main

raise SystemExit(main())
