"""The wire: conversion of protobuf messages, servers and clients."""
