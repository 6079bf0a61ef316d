"""Migrations of the tracker's schema, run by Alembic when a database is opened."""
