VERSION = "0.2.0"
NUMBERS = 7  # raised with every change that moves a score, so that no journal mixes versions
RECORDS = 1  # raised when a field of any system's records changes its meaning
