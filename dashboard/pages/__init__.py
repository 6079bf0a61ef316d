"""One file a page; each has ``build(source)``, called inside its route."""
