//! `Embed`: rows of the table, one a token.

use super::Cpu;
use crate::error::{Error, Kind, Result};
use crate::model::op::{Input, Step, WeightId};

impl Cpu {
    /// `residual[n][hidden] ← table[token]`
    pub(super) fn embed(&mut self, table: WeightId, step: &Step<'_>) -> Result<()> {
        let last;
        let tokens = match step.input {
            Input::Tokens(tokens) => tokens,
            Input::Last => {
                last = [self.sampled.ok_or_else(|| {
                    fault("the step continues a token, but none has been chosen before it")
                })?];
                &last
            }
        };
        let weight = self.weights.weight(table);
        if let Some(bad) = tokens.iter().find(|t| **t >= weight.shape.rows) {
            return Err(fault(format!(
                "token {bad} is outside a vocabulary of {}",
                weight.shape.rows
            )));
        }
        let codec = weight.format.codec();
        for (token, row) in
            tokens.iter().zip(self.bufs.residual.chunks_exact_mut(self.bufs.row.len()))
        {
            let words = &mut self.bufs.row;
            codec.decode_rows(weight.shape, &weight.parts, *token..token + 1, words);
            for (x, word) in row.iter_mut().zip(words) {
                *x = crate::num::bf16_to_f32(*word);
            }
        }
        self.history.truncate(step.pos as usize);
        self.history.extend_from_slice(tokens);
        Ok(())
    }
}

fn fault(why: impl Into<String>) -> Error {
    Error::new(
        Kind::Failure,
        "cannot look up the tokens",
        why,
        "report this; it is a fault of snug",
    )
}
