#!/bin/sh
# The least rights of a writer and a reader of namespace flights.
# They count only with these settings of every broker and controller, and no listener without a login
# that other machines reach:
#   authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
#   allow.everyone.if.no.acl.found=false
#   super.users=User:admin
set -eu
kafka-acls --bootstrap-server broker1:9093 --add --allow-principal User:tidegate-writer --operation Create --operation Read --operation Write --operation Delete --operation DescribeConfigs --topic tidegate.flights. --resource-pattern-type prefixed
kafka-acls --bootstrap-server broker1:9093 --add --allow-principal User:tidegate-reader --operation Read --topic tidegate.flights. --resource-pattern-type prefixed
