//! The law and the oracle as a suite that tests, CI and `abreast verify` all call.
