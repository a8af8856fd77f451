"""What an op takes and gives: its schema, the checks of its arguments, how it is split over devices."""
