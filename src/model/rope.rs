//! Rotary tables, made on the host in float64 so that every backend and system turns by the same angles.
