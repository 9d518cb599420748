from rootscale.cli import main

raise SystemExit(main())
