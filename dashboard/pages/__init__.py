"""Pages of the dashboard, one module per page; each has a ``build`` function, called inside its route."""
