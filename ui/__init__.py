"""User interfaces: the command line and the search page. No ranking logic, no SQL."""
