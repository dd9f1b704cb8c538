"""Tables of stimuli in, tables of surprisals out."""
