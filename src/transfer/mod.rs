//! Carries plans out: conversion of elements on the way from storage to their destination.

pub mod convert;
