"""The starter `english-voices`: a VITS with two voices that reads English letters."""
