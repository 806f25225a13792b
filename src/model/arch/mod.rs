//! `model_type` → how its config.json and tensor names are read. Names and config, never compute.
