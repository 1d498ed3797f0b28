"""AMOS (ISCA 2022; spec 3, section 6): its operators, layers, networks and machine as data, and its tables anew."""
