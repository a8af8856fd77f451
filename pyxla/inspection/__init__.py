"""What XLA compiled and ran: inspect and its text, assertions, compilation without the device, device times."""
