//! One conversation. The tokens are the truth; the cache is derived from them, and rewinding it costs nothing.

use crate::error::{Error, Kind, Result};

/// What the cache of a backend holds.
#[derive(Clone, Debug)]
pub struct Session {
    cached: Vec<u32>,
    capacity: u32,
}

impl Session {
    /// An empty session over a cache of `capacity` tokens.
    pub fn new(capacity: u32) -> Session {
        Session { cached: Vec::new(), capacity }
    }

    /// The tokens whose keys and values are in the cache, by position.
    pub fn cached(&self) -> &[u32] {
        &self.cached
    }

    /// Tokens the cache can hold.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Tokens it holds.
    pub fn used(&self) -> u32 {
        self.cached.len() as u32
    }

    /// Goes back to the longest prefix that the cache shares with `prompt`, and returns its length. At least one token
    /// is left to run, because logits come only from running.
    pub fn rewind_to(&mut self, prompt: &[u32]) -> usize {
        let common = self.cached.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        self.cached.truncate(common.min(prompt.len().saturating_sub(1)));
        self.cached.len()
    }

    /// Notes that a step put these tokens into the cache.
    pub fn advance(&mut self, tokens: &[u32]) {
        self.cached.extend_from_slice(tokens);
        debug_assert!(self.cached.len() <= self.capacity as usize);
    }

    /// Forgets everything, after a step that failed half-way.
    pub fn clear(&mut self) {
        self.cached.clear();
    }
}

/// How many tokens a shortened prompt leaves for the reply: what was asked for, at most a quarter of the context.
pub fn room(capacity: u32, max_tokens: Option<u32>) -> u32 {
    max_tokens.unwrap_or(u32::MAX).min(capacity / 4)
}

/// Cuts the middle out of `prompt`, so that `room` tokens stay free.
pub fn cut_middle(prompt: &[u32], capacity: u32, room: u32) -> Vec<u32> {
    let keep = (capacity - room.min(capacity)) as usize;
    if prompt.len() <= keep {
        return prompt.to_vec();
    }
    let head = keep / 2;
    let tail = prompt.len() - (keep - head);
    [&prompt[..head], &prompt[tail..]].concat()
}

/// The refusal of a prompt that is too long.
pub fn too_long(tokens: usize, capacity: u32, model_limit: u32) -> Error {
    let over = tokens as u64 - u64::from(capacity);
    let todo = if tokens as u64 <= u64::from(model_limit) {
        format!(
            "give it room with -c {tokens} or more, shorten the prompt, or choose --overflow shift|truncate-middle"
        )
    } else {
        "shorten the prompt, or choose --overflow shift|truncate-middle".to_owned()
    };
    Error::new(
        Kind::ContextOverflow,
        "cannot answer: the prompt does not fit in the context",
        format!("the prompt has {tokens} tokens, the context holds {capacity}: {over} too many"),
        todo,
    )
}

/// Checks that a context can be reserved at all.
pub fn check_context(wanted: u32, model_limit: u32) -> Result<u32> {
    if wanted == 0 || wanted > model_limit {
        return Err(Error::new(
            Kind::Usage,
            format!("cannot reserve a context of {wanted} tokens"),
            format!("the model knows positions up to {model_limit}"),
            format!("use -c with a number from 1 to {model_limit}"),
        ));
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_common_prefix_is_kept_and_one_token_is_left_to_run() {
        for (cached, prompt, kept) in [
            (&[][..], &[1, 2][..], 0),
            (&[1, 2, 3], &[1, 2, 3, 4], 3),
            (&[1, 2, 3], &[1, 2, 3], 2),
            (&[1, 2, 3], &[1, 2], 1),
            (&[1, 2, 3], &[1, 9, 3], 1),
            (&[1, 2, 3], &[9], 0),
            (&[1], &[], 0),
        ] {
            let mut s = Session::new(8);
            s.advance(cached);
            assert_eq!(s.rewind_to(prompt), kept, "{cached:?} {prompt:?}");
            assert_eq!(s.cached(), &prompt[..kept]);
        }
    }

    #[test]
    fn cutting_keeps_both_ends_and_fills_exactly() {
        let prompt: Vec<u32> = (0..100).collect();
        for (capacity, room) in [(64, 16), (64, 0), (63, 16), (10, 9), (1, 0)] {
            let cut = cut_middle(&prompt, capacity, room);
            assert_eq!(cut.len() as u32, capacity - room);
            assert_eq!(cut.last(), Some(&99));
            assert!(cut.is_sorted());
        }
        assert_eq!(cut_middle(&prompt, 100, 0), prompt);
    }
}
