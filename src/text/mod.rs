//! Chat completions need text; this is where text lives: tokens, templates, stops.
