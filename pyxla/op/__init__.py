"""What an op takes and returns: its schema, the checks of its arguments, how it is split over devices."""
