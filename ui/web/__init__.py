"""The parts of the search page: state and URL, collections, controls, grid, large view."""
