"""Planning of a reconcile: compares trees and findings, and returns repair actions. No I/O."""
