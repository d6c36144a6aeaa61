"""The words of the field and the search itself: standard library and numpy only, no I/O."""
