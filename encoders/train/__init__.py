"""How models are made, with the extra `train` (torch); what serves imports nothing from here."""
