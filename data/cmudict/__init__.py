"""How words are said: the CMU Pronouncing Dictionary."""
