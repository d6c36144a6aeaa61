"""How people reach capsearch: the command line and the search page. No ranking logic."""
